// Colours as the system has them, light, or dark. A classic script, so that it is done before anything is painted.
"use strict";
(() => {
  const KEY = "whitepanda-colours";
  const CHOICES = ["system", "light", "dark"];
  let choice = "system";
  try {
    const kept = localStorage.getItem(KEY);
    if (CHOICES.includes(kept)) choice = kept;
  } catch {
    // Storage is off: the choice lasts as long as the page.
  }
  const apply = () => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Colours: ${choice}`;
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // As above.
      }
      apply();
      document.dispatchEvent(new Event("colours"));
    });
  });
})();
