"""Jobs of several ranks for the tests of the reference trainer."""
