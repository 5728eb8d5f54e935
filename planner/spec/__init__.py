"""What people write: machines and operators, checked at the border."""
