"""`whitepanda top`: the VMs of this host, or of a recording, live in a terminal. Needs the extra `top`."""
