"""The dsacp command: replay a trace eager and by graph, and compare everything."""
