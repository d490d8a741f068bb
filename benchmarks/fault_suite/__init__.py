"""What ``fault_comparison.py`` runs."""
