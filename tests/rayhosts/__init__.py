"""Ray clusters of several hosts on one machine: a network namespace is a host with an address of its own."""
