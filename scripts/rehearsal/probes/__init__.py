"""Programs that run in the serving interpreter, not in the tools' one. Nothing here imports the tools."""
