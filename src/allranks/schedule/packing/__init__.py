"""Which job begins when: pure, and the same for a run and for the simulator."""
