"""The fleet page: static files that ask the fleet API of the same server, and nothing else.

In: the path of a request. Out: a file, compressed, with its ETag.
Next: the browser.
"""
