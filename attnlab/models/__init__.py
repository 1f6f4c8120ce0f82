"""Language models: tokens in, logits for the next token out."""
