/** Keeps the frame standing when a page fails: shows what failed, until another page is opened. */

import { Component, type ReactNode } from "react";
import { useLocation } from "react-router";
import { ErrorState } from "./states";

export function PageBoundary({ children }: { children: ReactNode }) {
  const { pathname } = useLocation();
  return <Boundary key={pathname}>{children}</Boundary>;
}

class Boundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: null };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <ErrorState
        title="This page failed"
        error={this.state.error}
        onRetry={() => window.location.reload()}
      />
    );
  }
}
