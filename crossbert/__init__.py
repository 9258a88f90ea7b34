"""CrossBERT, its flat baselines and the pre-training loop.

Importing this package makes `transformers.AutoModel` load exported checkpoints. It imports nothing heavy itself.
"""

from crossbert.registration import register_when_possible

register_when_possible()
