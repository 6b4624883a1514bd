"""`perdure jobs`: list, show, watch and control jobs."""
