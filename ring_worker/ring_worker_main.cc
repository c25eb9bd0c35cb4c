// written soon
int main() { return 0; }
