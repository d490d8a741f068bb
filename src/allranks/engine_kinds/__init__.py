"""The engines of allranks, each with all that a run and the doctor need of it."""
