"""A trained model as files that other programs load: transformers, llama.cpp, nanoGPT."""
