"""What people run. Nothing else of huefield imports from here."""
