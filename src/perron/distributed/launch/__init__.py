"""Starting, supervising and restarting the processes of a training."""
