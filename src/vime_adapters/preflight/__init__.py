"""Facts about hosts, gathered before planning: GPUs, addresses, ports in use, and what other fleets have leased."""
