"""What ``gang_speed.py`` runs."""
