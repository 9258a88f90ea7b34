"""MTEB through mteb itself: the run, the adapter, local copies of the data, mteb's results folder, the export."""
