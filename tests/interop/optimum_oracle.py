"""What sentence-transformers computes from exported folders with its ONNX backend: the texts come
from standard input as JSON, and embeddings go to FOLDER.npy for each FOLDER of the arguments.
"""

import json
import sys

import numpy as np
from sentence_transformers import SentenceTransformer

texts = json.load(sys.stdin)
for folder in sys.argv[1:]:
    model = SentenceTransformer(folder, backend="onnx", device="cpu")
    np.save(f"{folder}.npy", model.encode(texts))
