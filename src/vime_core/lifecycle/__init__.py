"""The life of a fleet as tables and a sans-IO machine: time is an argument, events come in, commands go out."""
