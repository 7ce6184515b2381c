"""Side-by-side measurements that print their own ratios."""
