"""A discrete-event simulator of a fleet of Quintet replicas. tools/bench/fleet.py is its command
line; deploy/SCALING.md shows how to size a fleet with it.

All times inside the simulator are seconds of simulated time, unless a name ends in _ms. A run
reads no clock, and its random numbers come from the seed of the scenario: equal inputs give equal
reports.
"""
