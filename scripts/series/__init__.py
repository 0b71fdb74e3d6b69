"""The series: patches, the tree they make, and the way back from an edited tree."""
