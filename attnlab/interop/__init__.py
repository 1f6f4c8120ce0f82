"""To and from models of other code bases: weights in their layouts, folders of transformers."""
