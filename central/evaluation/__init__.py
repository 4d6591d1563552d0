"""Evaluation of antagonist identification on traces with known antagonists: PANDA's section 5.2."""
