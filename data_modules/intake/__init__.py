"""What importers share: reading foreign tables and archives, storing clips, assembling the dataset folder."""
