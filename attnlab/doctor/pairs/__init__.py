"""The development set of the doctor: pairs of models, and for what causes they differ."""
