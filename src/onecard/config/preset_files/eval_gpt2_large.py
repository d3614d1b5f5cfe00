# nanoGPT's config/eval_gpt2_large.py: the released model's loss on the validation split.
batch_size = 8
eval_iters = 500
eval_only = True
wandb_log = False
init_from = "gpt2-large"
