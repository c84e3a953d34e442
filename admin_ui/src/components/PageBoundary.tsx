/** Keeps the frame standing when a page fails: shows what failed, until another page is opened. */

import { Component, type ReactNode } from "react";
import { useLocation } from "react-router";
import { ErrorState } from "./states";

export function PageBoundary({ children }: { children: ReactNode }) {
  const { pathname } = useLocation();
  return <Boundary pathname={pathname}>{children}</Boundary>;
}

interface BoundaryProps {
  pathname: string;
  children: ReactNode;
}

class Boundary extends Component<BoundaryProps, { error: unknown; pathname: string }> {
  override state: { error: unknown; pathname: string } = { error: null, pathname: "" };

  static getDerivedStateFromError(error: unknown) {
    return { error };
  }

  static getDerivedStateFromProps({ pathname }: BoundaryProps, state: { pathname: string }) {
    return pathname === state.pathname ? null : { error: null, pathname };
  }

  override render() {
    if (this.state.error === null) return this.props.children;
    return (
      <ErrorState
        title="This page could not be displayed"
        error={this.state.error}
        onRetry={() => window.location.reload()}
      />
    );
  }
}
