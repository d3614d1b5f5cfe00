# gpt2-xl as released: 1,557.6M parameters (vocabulary 50257, biases), trained on 10 B tokens in batches of 0.5M.
# Learning rates: GPT-3's table 2.1 for the size (Brown et al. 2020), as llm.c uses them.
out_dir = "out-gpt2-xl"
dataset = "fineweb-edu"
block_size = 1024
max_iters = 19073  # one pass over 10 B tokens
lr_decay_iters = 19073
warmup_iters = 700
batch_size = 1
gradient_accumulation_steps = 512
n_layer = 48
n_head = 25
n_embd = 1600
vocab_size = 50257
bias = True
learning_rate = 2e-4
min_lr = 2e-5
