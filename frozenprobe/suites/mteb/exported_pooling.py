"""A pooler of frozenprobe as a module of sentence-transformers; needs torch and sentence-transformers only.

`SentenceTransformer(folder, trust_remote_code=True)` runs this file from the folder. The pooler itself is the graph in `pooler.pt2`
(`torch.export`), which holds its operations and weights and no Python.
"""

import shutil
from pathlib import Path

import torch

try:
    from sentence_transformers.base.modules import Module
except ImportError:  # releases before 6
    from sentence_transformers.models import Module  # ty: ignore[import-not-found]

GRAPH = "pooler.pt2"
SOURCE = "frozenprobe_pooling.py"


class ExportedPooling(Module):
    """Token features and mask in, one vector per text out."""

    config_keys = ["dimensions", "token_dimensions"]  # noqa: RUF012

    def __init__(self, dimensions, token_dimensions, pooler):
        """Takes the exported program, and the widths of its vectors and of the tokens."""
        super().__init__()
        self.dimensions = dimensions
        self.token_dimensions = token_dimensions
        self.program = pooler
        self.pooler = pooler.module()

    def forward(self, features, **kwargs):
        """Adds `sentence_embedding`; padding is set to zero first, as in training."""
        tokens = features["token_embeddings"].float()
        mask = features["attention_mask"].bool()
        tokens = tokens.masked_fill(~mask[..., None], 0)
        if len(tokens) == 1:  # torch.export takes a batch of one for a constant
            vectors = self.pooler(tokens.expand(2, -1, -1).contiguous(), mask.expand(2, -1).contiguous())[:1]
        else:
            vectors = self.pooler(tokens, mask)
        features["sentence_embedding"] = vectors
        return features

    def train(self, mode=True):
        """Changes nothing but the flag: the graph is that of evaluation."""
        self.training = mode
        return self

    def get_embedding_dimension(self):
        """Width of the vectors."""
        return self.dimensions

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path, *args, **kwargs):
        """Writes widths and graph, and this file to the folder above, where it is looked for."""
        self.save_config(output_path)
        torch.export.save(self.program, str(Path(output_path) / GRAPH))
        shutil.copyfile(__file__, Path(output_path).parent / SOURCE)

    @classmethod
    def load(cls, model_name_or_path, subfolder="", **kwargs):
        """Reads what `save` wrote, from a folder or from the hub."""
        known = ("token", "cache_folder", "revision", "local_files_only")
        where = {"subfolder": subfolder, **{name: kwargs[name] for name in known if name in kwargs}}
        config = cls.load_config(model_name_or_path, **where)
        graph = cls.load_file_path(model_name_or_path, GRAPH, **where)
        return cls(**config, pooler=torch.export.load(graph))
