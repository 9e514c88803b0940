"""Peers for the adapters to talk to: stand-ins and starters of real ones."""
