// Where a project's VMs run now, and which jobs they are of: views that list hosts and jobs are narrowed by it.
const SIZE = 1000;

/** Its {hosts, jobs} as sets; null where no project is asked for. */
export async function ours(ask, project) {
  if (!project) return null;
  const found = { hosts: new Set(), jobs: new Set() };
  let token = "";
  do {
    const page = await ask("v1/vms", { project, order: "name", page_size: SIZE, page_token: token });
    for (const vm of page.vms) {
      found.hosts.add(vm.host);
      found.jobs.add(vm.job);
    }
    token = page.next_page_token;
  } while (token);
  return found;
}
