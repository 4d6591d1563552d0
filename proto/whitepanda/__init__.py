"""whitepanda: the package that holds the protocol and what host and central share."""
