"""The engines that allranks has, each with all that a run and the doctor need to know of it."""
