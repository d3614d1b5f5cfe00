"""How good a model is: bits per byte on any text, HellaSwag, LAMBADA; each result with its protocol and interval."""
