"""`tenora bench hostile`: what a tenant with the worst inputs for every route costs another."""
