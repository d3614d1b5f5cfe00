"""The local page and its API: plan, runs, talk. Needs the extra `ui`; nothing here is imported by other rooms but `cli`."""
