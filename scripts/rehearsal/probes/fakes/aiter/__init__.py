"""TEST ONLY. Makes `find_spec("aiter")` say yes; holds no kernel."""
