"""Random kills over a running fleet, counted."""
