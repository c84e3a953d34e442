"""How fast the portal is with much on the platform (`tenora bench portal`)."""
