"""What each GPU offers to claims, and how that is published as ResourceSlices."""
