"""What every tool uses: errors and exit codes, folders, files, child processes, git."""
