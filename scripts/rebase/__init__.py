"""The series carried to another release, one release at a time."""
