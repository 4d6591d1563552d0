"""`whitepanda top`: the VMs of a host, or of a recording, live in a terminal. Needs the extra `top`.

In: messages of the local API. Out: a table and a detail pane.
Next: the terminal.
"""
