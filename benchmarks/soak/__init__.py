"""Mixed work for half an hour while daemons are killed, and whether memory, descriptors and disk stay flat."""
