"""`tenora bench tenancy`: what tenants of one live engine feel of one another, one file for each
experiment."""
