"""CrossBERT, its flat baselines and the pre-training loop."""
