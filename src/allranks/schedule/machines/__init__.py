"""Which machine of a CI runs which jobs: a plan that one machine makes and all others check before they go by it."""
