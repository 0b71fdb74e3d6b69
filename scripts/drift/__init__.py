"""What an upstream release would change for us, without a rebase."""
