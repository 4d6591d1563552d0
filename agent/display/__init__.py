"""How values look to people.

In: messages of the local API. Out: words, numbers, colours and columns, the same in every command and in `top`.
Next: `agent.cli`, `agent.top`.
"""
